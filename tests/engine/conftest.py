"""A cluster of two worker processes on this machine, shared by the tests of this folder. Idle, it still takes time."""

import os
import time

import pytest


@pytest.fixture(scope="package")
def client():
    distributed = pytest.importorskip("distributed")
    import dask

    # With as many XLA threads as this process has, a worker's matrix products add up in the same order. Only then are
    # results equal to the last bit.
    environment = {"NPROC": str(os.cpu_count()), "PJRT_NPROC": str(os.cpu_count())}
    with (
        # A worker that is slow to come back on a busy machine is not to be given up.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", env=environment
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def processes(client):
    """Process ids of the workers, by address."""

    def find() -> dict[str, int]:
        # Asked of the scheduler: what a cluster object knows of its workers may be out of date.
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.running)) < 2:
            time.sleep(0.05)
        return client.run(os.getpid, on_error="ignore")

    return find
