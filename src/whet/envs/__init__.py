"""Episodes with somebody who answers: environments, tools, adapters to other people's, agent programs."""
