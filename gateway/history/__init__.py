"""What the pipeline made of the journal, for people: tables of a warehouse read through pyarrow, without a JVM.

``scope``     which time, service and rank is asked for; how wide the steps of a chart are
``tables``    directory -> partitions -> files -> rows
``files``     one file -> batches of rows, never more than a budget
``grouping``  batches -> sums per key, as lines of a chart, as tables
``traffic``   messages over time, and who sends most of them
``latency``   how long calls took, per step and per topic
``findings``  what was refused, what was lost or out of order, who read too slowly; jobs, notifications
``reader``    questions -> answers, among them which tables there are and how fresh: one thread beside the event loop, a
              small memory of answers

Nothing here imports pyarrow before the first question is asked: a gateway without it starts and says so.
"""
