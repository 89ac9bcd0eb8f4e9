"""What parked stands on: the ledger's volume, machines that share it, clocks, certificates, proxies, key and sidecar.

Each fact has one home here. What costs nothing noticeable is looked at whenever a ledger is opened or an adapter made;
all of it by `parked doctor`.
"""
