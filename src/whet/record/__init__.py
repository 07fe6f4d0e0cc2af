"""What a run leaves on disk: the log, its readers, statistics over it, and its health.

`RunRecorder` and `Console` are callbacks; `diagnosis` reads the steps so far. The fields of the logs are described in
docs/report.md; `whet.pages` draws them.
"""
