"""The ranges that fields of several sections share."""

from typing import Annotated

from msgspec import Meta

Userid = Annotated[
    int, Meta(ge=0, le=2**32 - 2)
]  # 0xFFFFFFFF means unknown, and an owner link would fill it in
Count = Annotated[int, Meta(ge=1, le=2**31)]
Bytes = Annotated[int, Meta(ge=1024, le=2**32 - 1)]  # frames announce their size in 32 bits
Seconds = Annotated[float, Meta(ge=0, le=86400 * 365)]
Text = Annotated[str, Meta(min_length=1)]
