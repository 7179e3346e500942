"""Texts of configuration files for tests, and what is said about wrong ones."""

import pytest

from broker.errors import ConfigError
from broker.settings import loads

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
OTHER_KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


def refusal(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    return str(caught.value).splitlines()


def host(rank: int, *more: str, address: str = "tcp://127.0.0.1:8050") -> str:
    return "\n".join(["[[hosts]]", f"rank = {rank}", f'address = "{address}"', *more, ""])
