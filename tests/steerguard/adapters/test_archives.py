"""Archives: the two files come out of good ones, and of hostile ones nothing does."""

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steerguard.adapters import Problems, archive, open_source
from tests.steerguard.adapters.conftest import Check
from tests.steerguard.adapters.making import CONFIG, WEIGHTS

Pack = Callable[[Path, dict[str, bytes]], Path]


def pack_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def pack_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def pack_tar_gz(path: Path, members: dict[str, bytes]) -> Path:
    return pack_tar(path, members, "w:gz")


PACKS: dict[str, Pack] = {"zip": pack_zip, "tar": pack_tar, "tar.gz": pack_tar_gz}
TARS: dict[str, Pack] = {"tar": pack_tar, "tar.gz": pack_tar_gz}
each_kind = pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)


@pytest.fixture
def files(good_adapter: Path) -> dict[str, bytes]:
    return {name: (good_adapter / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def leftovers(scratch: Path) -> list[str]:
    return [str(path) for path in scratch.rglob("*")]


@each_kind
@pytest.mark.parametrize("folder", ["", "./", "adapter/", "home/me/out/", "größe 2/"])
def test_the_two_files_are_found(
    pack: Pack, folder: str, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    members = {f"{folder}{name}": data for name, data in files.items()}
    members[f"{folder}README.md"] = b"# An adapter"
    members[f"{folder}checkpoint-10/{CONFIG}"] = b"an older one"
    members["__MACOSX/._adapter_config.json"] = b"rubbish"
    assert check(pack(tmp_path / "upload", members)) == {}


@each_kind
def test_what_comes_out_is_the_owners_alone_and_goes_away(pack: Pack, tmp_path: Path, files: dict[str, bytes]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    problems = Problems()
    with open_source(pack(tmp_path / "upload", files), problems, scratch=scratch) as found:
        assert found.config is not None and found.weights is not None
        assert found.weights.read_bytes() == files[WEIGHTS]
        assert sorted(path.name for path in found.config.parent.iterdir()) == [CONFIG, WEIGHTS]
        assert stat.S_IMODE(found.config.stat().st_mode) == 0o600
        assert stat.S_IMODE(found.config.parent.stat().st_mode) == 0o700
    assert leftovers(scratch) == []
    assert not problems


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS])
@each_kind
def test_a_missing_file_is_named(
    pack: Pack, missing: str, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    del files[missing]
    assert check(pack(tmp_path / "upload", files)) == {missing: ("a file of that name", "none")}


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt", "adapter_model.pth"])
@each_kind
def test_a_pickle_is_refused_beside_the_weights_and_in_their_place(
    pack: Pack, name: str, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    assert list(check(pack(tmp_path / "both", {**files, name: b"\x80\x04}."}))) == [name]
    alone = check(pack(tmp_path / "alone", {CONFIG: files[CONFIG], name: b"\x80\x04}."}))
    assert list(alone) == [WEIGHTS, name]


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "a/../../evil", "/etc/evil", "..", "a\\..\\evil", "C:/evil", "evil\n", "\u202eevil",
        f"../{WEIGHTS}", f"/{CONFIG}", "x" * 600,
    ],
)  # fmt: skip
@each_kind
def test_a_name_that_leads_elsewhere_is_refused(
    pack: Pack, name: str, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    assert "archive" in check(pack(tmp_path / "upload", {**files, name: b"evil"}))
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("pack", TARS.values(), ids=TARS)
@pytest.mark.parametrize("name", ["link", WEIGHTS])
def test_links_and_devices_in_a_tar_are_refused(
    pack: Pack, kind: bytes, name: str, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    members = {other: data for other, data in files.items() if other != name}
    path = pack(tmp_path / "plain.tar", members)
    raw = gzip.decompress(path.read_bytes()) if path.read_bytes()[:2] == b"\x1f\x8b" else path.read_bytes()
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    (tmp_path / "upload").write_bytes(info.tobuf() + raw)
    expected, found = check(tmp_path / "upload")["archive"]
    assert expected == "files and folders only"
    assert name in found


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
@pytest.mark.parametrize("name", ["link", WEIGHTS])
def test_links_and_devices_in_a_zip_are_refused(
    mode: int, name: str, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    path = pack_zip(tmp_path / "upload", {other: data for other, data in files.items() if other != name})
    with zipfile.ZipFile(path, "a") as file:
        info = zipfile.ZipInfo(name)
        info.external_attr = (mode | 0o777) << 16
        file.writestr(info, "/etc/passwd")
    assert check(path)["archive"][0] == "files and folders only"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@each_kind
def test_a_name_that_comes_twice_is_refused(pack: Pack, tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    path = pack(tmp_path / "upload", {**files, f"./{CONFIG}": files[CONFIG]})
    assert check(path)["archive"] == ("each name once", f"{CONFIG} twice")


@each_kind
def test_two_adapters_in_one_archive_are_refused(
    pack: Pack, tmp_path: Path, files: dict[str, bytes], check: Check
) -> None:
    members = {f"{folder}/{name}": data for folder in "ab" for name, data in files.items()}
    assert check(pack(tmp_path / "upload", members))["archive"][1] == "them in a, b"


@each_kind
def test_too_many_members_are_refused(pack: Pack, tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    members = {**{f"notes/{number}": b"" for number in range(archive.MAX_MEMBERS)}, **files}
    assert check(pack(tmp_path / "upload", members))["archive"][0] == f"at most {archive.MAX_MEMBERS} members"


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    bomb = pack_zip(tmp_path / "upload", {CONFIG: files[CONFIG], WEIGHTS: b"\0" * 64 * 1024**2})
    assert check(bomb)[WEIGHTS][0] == f"at most {archive.MAX_RATIO} times the archive's size"


def test_a_gzip_bomb_is_cut_off(tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    bomb = pack_tar_gz(tmp_path / "upload", {**files, "zeros": b"\0" * 512 * 1024**2})
    expected, found = check(bomb)["archive"]
    assert expected.endswith("when unpacked")
    assert found == "more"


def test_a_size_that_a_directory_lies_about_is_found(tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    path = pack_zip(tmp_path / "upload", files)
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\x01\x02")
    raw[entry + 24 : entry + 28] = (7).to_bytes(4, "little")  # the weights' size when unpacked
    path.write_bytes(raw)
    assert WEIGHTS in check(path)


def test_members_too_large_together_are_refused(
    tmp_path: Path, files: dict[str, bytes], check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 10_000)
    assert check(pack_zip(tmp_path / "upload", {**files, "more": os.urandom(20_000)}))["archive"][0] == (
        "at most 10000 bytes when unpacked"
    )


def test_a_config_larger_than_one_is_refused(tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    for name, pack in PACKS.items():
        path = pack(tmp_path / name, {CONFIG: os.urandom(2 * 1024**2), WEIGHTS: files[WEIGHTS]})
        assert check(path)[CONFIG][0] == "at most 1048576 bytes"


def test_an_extended_header_that_claims_to_be_huge_is_refused(tmp_path: Path, check: Check) -> None:
    """tarfile reads as much of one as it claims to have, at once."""
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = 10**9
    (tmp_path / "upload").write_bytes(info.tobuf() + b"\0" * 4096)
    assert check(tmp_path / "upload")["archive"][1] == "a header of 1000000000 bytes"


def test_headers_that_have_headers_end(tmp_path: Path, check: Check) -> None:
    block = tarfile.TarInfo("x")
    block.type = tarfile.XHDTYPE
    (tmp_path / "upload").write_bytes(block.tobuf() * 5_000)
    assert "archive" in check(tmp_path / "upload")


def test_an_encrypted_zip_is_refused(tmp_path: Path, files: dict[str, bytes], check: Check) -> None:
    path = pack_zip(tmp_path / "upload", files)
    raw = path.read_bytes().replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")
    path.write_bytes(raw)
    assert check(path)[WEIGHTS] == ("a file that isn't encrypted", "an encrypted one")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_link_in_a_folder_is_not_followed(adapter: Path, name: str, tmp_path: Path, check: Check) -> None:
    (adapter / name).rename(tmp_path / "elsewhere")
    (adapter / name).symlink_to(tmp_path / "elsewhere")
    assert check(adapter) == {name: ("a regular file", "a link")}


def test_a_folder_in_a_files_place_is_refused(adapter: Path, check: Check) -> None:
    (adapter / WEIGHTS).unlink()
    (adapter / WEIGHTS).mkdir()
    assert check(adapter) == {WEIGHTS: ("a regular file", "another kind of file")}


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"PK\x05\x06", b"\x1f\x8b", b"nonsense" * 200, b"\0" * 1024, b"7z\xbc\xaf"]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, check: Check, data: bytes) -> None:
    (tmp_path / "upload").write_bytes(data)
    assert check(tmp_path / "upload")


def test_what_is_not_there_is_said(tmp_path: Path, adapter: Path, check: Check) -> None:
    assert check(tmp_path / "nothing")["path"][1] == "nothing there"
    assert check(adapter, model=tmp_path / "nothing")["base"][0] == "a folder with a model's config.json"
    assert check(adapter, model=adapter)["base"][1] == "no config.json"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@each_kind
def test_a_damaged_archive_is_read_without_a_failure(
    pack: Pack, tmp_path: Path, files: dict[str, bytes], data: st.DataObject
) -> None:
    """Bytes changed, cut or inserted anywhere: there is an answer, never an exception, and nothing is left behind."""
    small = {CONFIG: files[CONFIG], WEIGHTS: files[WEIGHTS][:2_000], "notes/x": b"x" * 600}
    content = bytearray(pack(tmp_path / "good", small).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        how = data.draw(st.sampled_from(["set", "set", "cut", "insert"]))
        if how == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif how == "cut" and len(content) > 600:
            del content[at : at + data.draw(st.integers(1, 512))]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=512))
    (tmp_path / "upload").write_bytes(bytes(content))
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    with open_source(tmp_path / "upload", Problems(), scratch=scratch) as found:
        for file in (found.config, found.weights):
            assert file is None or file.parent.parent == scratch
    assert leftovers(scratch) == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=3_000), start=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08"]))
def test_any_bytes_are_read_without_a_failure(tmp_path: Path, content: bytes, start: bytes) -> None:
    (tmp_path / "upload").write_bytes(start + content)
    problems = Problems()
    with open_source(tmp_path / "upload", problems) as found:
        assert found.weights is None or not problems
