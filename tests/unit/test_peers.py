"""Godwit beside its peers: wrong results are found, and peers without figures are in the table."""

import sys
from pathlib import Path

import pytest
from benchmarks.peers import __main__ as peers
from benchmarks.peers.engines import Peer
from benchmarks.peers.environments import PeerFailedError
from benchmarks.peers.processes import Usage, run
from benchmarks.peers.table import Figures, lines_of
from benchmarks.peers.workloads import Workload, difference, first_files

_FEW = Workload(name="few", about="few keys", rows=1_000, keys=20, fast=(1, 2), slow=(1, 2))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _FEW.files(tmp_path_factory.mktemp("inputs"))


def _results(files: Path) -> list[str]:
    """Return a change of a key's result for each row."""
    sums: dict[str, tuple[int, float]] = {}
    changes = []
    for path in sorted(files.iterdir()):
        for line in path.read_text().splitlines():
            key, v = line.split(",")
            n, s = sums.get(key, (0, 0.0))
            sums[key] = n + 1, s + float(v)
            changes.append(f"{key},{n + 1},{s + float(v)!r}")
    return changes


def test_the_last_results_of_all_keys_are_duckdbs(files: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    assert difference(files, results) == "there are no results"
    changes = _results(files)
    results.write_text("\n".join(changes))
    assert difference(files, results) is None
    key, n, s = changes[-1].split(",")
    wrong = {
        "another number": f"{key},{int(n) - 1},{s}",
        "another sum": f"{key},{n},{float(s) + 0.01}",
        "a key too many": f"nobody,1,{s}",
    }
    for why, line in wrong.items():
        results.write_text("\n".join([*changes, line]))
        assert (difference(files, results) or "").startswith(line.split(",")[0]), why
    results.write_text("\n".join(line for line in changes if not line.startswith(key)))
    assert (difference(files, results) or "").startswith(f"{key}: 0 rows"), "a key is missing"


def test_a_job_reads_the_first_files(files: Path, tmp_path: Path) -> None:
    first_files(files, 1, tmp_path / "plain", header=False)
    first_files(files, 2, tmp_path / "named", header=True)
    (plain,) = (tmp_path / "plain").iterdir()
    named = sorted((tmp_path / "named").iterdir())
    assert [named[0].name, len(named)] == [plain.name, 2]
    assert named[0].read_text() == "key,v\n" + plain.read_text()


def _figures(peer: str, seconds: float) -> Figures:
    figures = Figures(name=peer, rows=(1_000_000, 3_000_000))
    for _ in range(2):
        figures.small.append(Usage(seconds=5.0, cpu_s=6.0, peak_bytes=2**20))
        figures.large.append(Usage(seconds=5.0 + seconds, cpu_s=10.0, peak_bytes=2**21))
    return figures


def test_a_rate_is_that_of_the_rows_by_which_jobs_differ() -> None:
    godwit, peer = _figures("godwit", 1.0), _figures("peer", 4.0)
    assert (godwit.rate(), peer.rate()) == (2e6, 5e5)
    assert (peer.cpu_s(), peer.peak_mib()) == (2.0, 2.0)
    assert peer.json("few", godwit)["times_as_slow"] == 4.0
    assert "| peer | 500,000 | 2.00 | 2 | 4.0x | 1.0x |" in lines_of("few keys", [godwit, peer])


def test_no_rate_is_given_where_the_larger_job_was_the_faster() -> None:
    godwit = _figures("godwit", -1.0)
    assert godwit.rate() is None
    assert "| godwit | - | 2.00 | 2 | - | 1.0x |" in lines_of("few keys", [godwit])


def test_a_peer_that_cannot_be_installed_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Path:
        raise PeerFailedError("cannot install absent==1: no such package")

    monkeypatch.setattr(peers, "python_of", refused)
    absent = Peer(
        name="absent", program="none", variant="v", function=None, requirement="absent==1"
    )
    figures = peers.compare(
        _FEW, [absent], rounds=1, inputs=tmp_path, environments=tmp_path, checked=set()
    )
    reason = "no figure: cannot install absent==1: no such package"
    assert f"| absent | {reason} | | | | |" in lines_of("few keys", figures)
    assert figures[0].json("few", figures[0])["failure"] in reason


def test_a_program_that_ends_before_its_job_fails_with_its_last_error() -> None:
    program = (
        "import sys; print('JOB BEGINS', flush=True); sys.stdin.readline(); raise OSError('full')"
    )
    with pytest.raises(PeerFailedError, match="OSError: full"):
        run(lambda _: [sys.executable, "-c", program])
