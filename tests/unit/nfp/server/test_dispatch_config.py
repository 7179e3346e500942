"""What the settings say is what the dispatcher goes by."""

from dataclasses import fields

import msgspec

from broker.nfp.jobs import DispatchConfig
from broker.nfp.server.broker import AHEAD, dispatch_config
from broker.settings.nfp import NfpSection


def test_the_defaults_are_the_same():
    assert dispatch_config(NfpSection()) == DispatchConfig(ahead=AHEAD)


def test_every_setting_of_the_same_name_arrives():
    names = {each.name for each in fields(DispatchConfig)} & set(NfpSection.__struct_fields__)
    changed = {name: type(getattr(NfpSection(), name))(4321) for name in names}
    config = dispatch_config(msgspec.structs.replace(NfpSection(), **changed))
    assert {name: getattr(config, name) for name in names} == changed
    assert {"results_max_jobs", "jobs_max", "parts_max", "parts_per_client", "open_max_bytes"} < names
