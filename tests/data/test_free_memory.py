"""Free memory: what the system has left, and what the container or batch job of the process leaves of it."""

import os

import pytest

from shardmc.data.gathered import free_memory

SYSTEM = {"proc/meminfo": "MemTotal:       16000 kB\nMemFree:  1000 kB\nMemAvailable:    8000 kB\n"}
NEW, OLD = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def system(folder, files):
    for name, text in {**SYSTEM, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8_192_000),
        ({"proc/self/cgroup": "0::/\n"}, 8_192_000),
        (
            {
                "proc/self/cgroup": "0::/\n",
                f"{NEW}/memory.max": "5000000\n",
                f"{NEW}/memory.current": "4000000\n",
                f"{NEW}/memory.stat": "anon 1000000\ninactive_file 2500000\n",
            },
            3_500_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/jobs/17\n",  # the job has no limit of its own, the folder of all jobs has
                f"{NEW}/jobs/17/memory.max": "max\n",
                f"{NEW}/jobs/memory.max": "6000000\n",
                f"{NEW}/jobs/memory.current": "1000000\n",
            },
            5_000_000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/a\n4:cpuset,memory:/a\n0::/\n",
                f"{OLD}/a/memory.limit_in_bytes": "3000000\n",
                f"{OLD}/a/memory.usage_in_bytes": "2000000\n",
                f"{OLD}/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500000\n",
            },
            1_500_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                f"{NEW}/memory.max": "1000\n",
                f"{NEW}/memory.current": "2000\n",
            },
            0,
        ),
        ({"proc/self/cgroup": "0::/\n", f"{NEW}/memory.max": "99999999999\n"}, 8_192_000),
    ],
)
def test_the_least_of_all_limits_counts(files, expected, tmp_path):
    assert free_memory(system(tmp_path, files)) == expected


def test_a_system_that_does_not_say_has_none(tmp_path):
    assert free_memory(tmp_path) == 0


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="needs Linux")
def test_this_machine_has_some():
    assert 0 < free_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
