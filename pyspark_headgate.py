"""What Spark finds by its name: ``spark.read.format("headgate")`` in any session of an environment with Headgate.

Spark 4 looks for modules ``pyspark_*`` with a class ``DefaultSource`` when it meets a format that it does not know.
"""

from gateway.pipeline.source import HeadgateSource as DefaultSource

__all__ = ["DefaultSource"]
