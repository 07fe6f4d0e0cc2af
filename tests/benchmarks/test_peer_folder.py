"""Code for other GPUs is blanked in a library, and nothing else of it changes."""

import struct

from peer_folder import BUNDLE, CUBIN, blank_other_gpus, bundles

PTX = 1


def image(kind: int, gpu: int, letter: bytes, size: int) -> bytes:
    head = bytearray(64)
    struct.pack_into("<HHIQ", head, 0, kind, 0, 64, size)
    struct.pack_into("<I", head, 28, gpu)
    return bytes(head) + letter * size


def library(*content: list[bytes]) -> bytes:
    """An ELF file with one section of GPU code and one of names."""
    code = b""
    for images in content:
        inside = b"".join(images)
        code += struct.pack("<IHHQ", BUNDLE, 1, 16, len(inside)) + inside + bytes(-len(inside) % 8)
    names = b"\0.nv_fatbin\0"
    sections = [(0, 0, 0, 0, 0, 0), (1, 1, 0, 0, 64, len(code)), (0, 3, 0, 0, 64 + len(code), len(names))]
    head = bytearray(64)
    struct.pack_into("<Q", head, 0x28, 64 + len(code) + len(names))
    struct.pack_into("<HHH", head, 0x3A, 64, len(sections), 2)
    table = b"".join(struct.pack("<IIQQQQ", *each) + bytes(24) for each in sections)
    return bytes(head) + code + names + table


def test_only_code_for_this_gpu_stays(tmp_path):
    mixed = [image(CUBIN, 80, b"a", 8), image(CUBIN, 90, b"b", 8), image(PTX, 80, b"c", 8), image(CUBIN, 100, b"d", 8)]
    older = [image(CUBIN, 80, b"e", 8), image(PTX, 80, b"f", 8), image(CUBIN, 120, b"g", 8)]
    large = [image(PTX, 80, b"h", 64)]
    file = tmp_path / "some.so"
    before = library(mixed, older, large)
    file.write_bytes(before)
    assert [len(each) for each in bundles(bytearray(before))] == [4, 3, 1]
    blank_other_gpus(file, 90, largest=40)
    after = file.read_bytes()
    kept = {letter: bytes([letter]) * 8 in after for letter in b"abcdefgh"}
    assert {chr(letter) for letter, stays in kept.items() if stays} == {"b", "e", "f"}
    assert len(after) == len(before)
    # headers are as they were: a driver still finds every image and its GPU
    assert list(bundles(bytearray(after))) == list(bundles(bytearray(before)))
