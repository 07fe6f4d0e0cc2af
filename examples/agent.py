"""An agent program: it asks, asks again where the answer is missing, and reports its own reward.

    whet sample --agent "python agent.py" --count 2        look at a few episodes
    whet train grpo --agent "python agent.py" --steps 20   train on them

whet starts it once per episode. The row of the data comes on standard input; the endpoint and its key are in the
environment, under the names that clients of OpenAI's API look for. Every call is recorded, token for token. The last
line of the output is the reward. docs/serve.md has the rest.
"""

import json
import os
import re
import sys
import urllib.request


def chat(messages: list[dict[str, str]]) -> dict[str, str]:
    """With the package `openai`: OpenAI().chat.completions.create(model="policy", messages=messages)."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def answer_in(text: str) -> str | None:
    found = re.search(r"<answer>(.*?)</answer>", text)
    return found and found[1]


def main() -> None:
    row = json.load(sys.stdin)
    messages = row["messages"]
    calls = 0
    while calls < 3:
        message, calls = chat(messages), calls + 1
        if answer_in(message["content"]) is not None:
            break
        messages += [message, {"role": "user", "content": "Give the answer in <answer> tags."}]
    is_right = answer_in(message["content"]) == row["answer"]
    # {"reward": null} leaves the episode unscored
    print(json.dumps({"reward": float(is_right), "metrics": {"calls": calls}}))


if __name__ == "__main__":
    main()
