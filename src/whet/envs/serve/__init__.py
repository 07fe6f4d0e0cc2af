"""The endpoint that agent programs talk to: the policy behind an OpenAI-compatible server, every token recorded.

`wire` is the JSON of the protocol, `call_tree` the record of an episode's calls, `request_queue` the engine's side,
`endpoint` the HTTP side, `agent` the runner that starts a program per episode.
"""
