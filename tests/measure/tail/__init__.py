"""Where the time of a slow first audio goes, on a node under strangers' load. `python -m tests.measure.tail --help`.

A stranger opens a WebSocket for each request, opens a context, sends a word every so often, and leaves after its end.
`probe` records what happens to each request in the front and in the engine, step by step; `anatomy` joins that with
what the clients saw. All times are of the monotonic clock, which the processes of a machine share.
"""
