"""The board: run folders as live web pages. `whet board FOLDER` serves them; docs/board.md.

`server` answers requests, knows who may, and sees what changes; `files` finds and opens what is there; `reader` keeps
up with a run's log and `sample_index` with its samples. A family of pages is a module with `add_routes(app, board)`.
"""
