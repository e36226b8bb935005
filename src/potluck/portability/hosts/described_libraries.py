"""The libraries whose versions and symbols are in the description of a host.

These are the libraries that portable builds rely on: those that the manylinux policies promise (PEP
513, 571, 599, 600; the lists are auditwheel's), compiler runtimes, and vendors' libraries for their
devices. Of all other libraries of a host, only the names are described.
"""

from __future__ import annotations

GLIBC_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libmvec.so.1",
    "libanl.so.1",
    "libnsl.so.1",
)
"""In addition to the loader, which also defines symbols and has a different name on each
machine.
"""

OTHER_LIBRARIES = (
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libgomp.so.1",
    "libatomic.so.1",
    "libz.so.1",
    "libOpenCL.so.1",
    "libcuda.so.1",
    "libvulkan.so.1",
    "libquadmath.so.0",
    "libgfortran.so.5",
    "libcrypt.so.1",
    "libexpat.so.1",
    "libgthread-2.0.so.0",
    "libgobject-2.0.so.0",
    "libSM.so.6",
    "libICE.so.6",
    "libXext.so.6",
    "libXrender.so.1",
    "libX11.so.6",
    "libglib-2.0.so.0",
    "libGL.so.1",
)
"""Libraries that more wheels need come first: if a description grows too long, the symbols of the
last are omitted. OpenGL has 3,500, which hardly any wheel uses.
"""
