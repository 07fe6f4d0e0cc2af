"""The board: run folders as live web pages. `whet board FOLDER` serves them; docs/board.md.

`server` answers requests and knows who may; `files` and `folders` find and open what is there; `reader` keeps up with
a run's log and `sample_index` with its samples; `watcher` sees what changes. Every family of pages is a module with
`add_routes(app, board)`.
"""
