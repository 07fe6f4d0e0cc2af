"""Runs in the virtual environment of OpenEnv: its capture proxy in front of the endpoint in argv.

Arguments: address of the endpoint. The token is in WHET_TOKEN. Prints one line of JSON.
"""

import json
import os
import socket
import sys

import httpx
from openenv.core.harness.capture import CaptureServer, to_training_trace, validate_llm

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}


def main(address: str) -> None:
    token = os.environ["WHET_TOKEN"]
    report = validate_llm(f"{address}/v1", "scripted", api_key=token)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    capture = CaptureServer(llm_url=f"{address}/v1", model="scripted", port=port, api_key=token, admin_key="admin")
    capture.start()
    try:
        session = capture.registry.create(sampling={"temperature": 1.0}, purpose="train")
        url = f"http://127.0.0.1:{port}"
        messages = [{"role": "user", "content": "2 + 3?"}]
        answers = []
        for _ in range(3):
            sent = httpx.post(
                f"{url}/v1/chat/completions",
                json={"model": "scripted", "messages": messages, "tools": [TOOL], "max_tokens": 100},
                headers={"Authorization": f"Bearer {session.session_id}"},
                timeout=30,
            )
            sent.raise_for_status()
            message = sent.json()["choices"][0]["message"]
            answers.append(message)
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                break
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "5"})
        document = httpx.get(
            f"{url}/sessions/{session.session_id}/rollout", headers={"Authorization": "Bearer admin"}, timeout=30
        ).json()
        trace = to_training_trace(session.graph, document)
        turns = [
            {
                "prompt": list(turn.prompt_token_ids),
                "completion": list(turn.completion_token_ids),
                "logps": list(turn.per_token_logps),
                "mask": list(turn.loss_mask),
            }
            for turn in trace.turns
        ]
        print(
            json.dumps(
                {
                    "level": report.capture_level,
                    "trainable": report.trainable,
                    "summary": report.summary(),
                    "answers": answers,
                    "turns": turns,
                    "sequences": len(document["sequences"]),
                    "validation": document.get("validation"),
                }
            )
        )
    finally:
        capture.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
