"""GGUF headers, written byte by byte."""

import struct

F32, F16, Q8_0, Q4_K, Q6_K = 0, 1, 8, 12, 14


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value):
    if isinstance(value, list):
        kind = _value(value[0])[:4]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + b"".join(_value(v)[4:] for v in value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def header(metadata, tensors, version=3):
    """A file without its data; `tensors` maps names to (shape, type)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    out += b"".join(text(key) + _value(value) for key, value in metadata.items())
    for name, (shape, kind) in tensors.items():
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<q", n) for n in shape)
        out += struct.pack("<IQ", kind, 0)
    return out
