from norfab.core.nfapi import NorFab

nf = NorFab(inventory="./inventory.yaml", run_broker=False, run_workers=False)
nf.start()
client = nf.make_client()
found = client.run_job("greeter", "greet", workers="all", kwargs={"name": "ada"}, timeout=60)
for worker, result in sorted(found.items()):
    print(worker, result["result"], result["failed"])
nf.destroy()
