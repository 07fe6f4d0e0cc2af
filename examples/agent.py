"""A minimal agent program: two turns with the official `openai` client, and the reward of its own.

    pip install 'whet[serve]' openai
    whet train grpo --agent "python examples/agent.py" --reward environment

whet starts it once per episode. The endpoint and the key are in the environment, where the client looks for them; the
row of the data is in WHET_PROMPT and on standard input. Every call is recorded, token for token, and trained on.
"""

import json
import os
import re

from openai import OpenAI


def main() -> None:
    row = json.loads(os.environ["WHET_PROMPT"])
    client = OpenAI()
    messages = list(row["messages"])
    answer = ""
    for _ in range(2):
        completion = client.chat.completions.create(model="policy", messages=messages)
        message = completion.choices[0].message
        answer = message.content or ""
        if says(answer, row["answer"]):
            break
        messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "Try again."}]
    # the last line of standard output; {"reward": null} leaves the episode unscored
    print(json.dumps({"reward": 1.0 if says(answer, row["answer"]) else 0.0, "metrics": {"length": len(answer)}}))


def says(text: str, answer: object) -> bool:
    """The last number of the text is the answer."""
    numbers = re.findall(r"-?\d+", text)
    return bool(numbers) and numbers[-1] == str(answer)


if __name__ == "__main__":
    main()
