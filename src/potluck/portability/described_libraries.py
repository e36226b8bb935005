"""The libraries whose versions and symbols are in the description of a host.

Those that builds for any Linux count on: what the manylinux policies promise (PEP 513, 571, 599,
600; the lists are auditwheel's), the runtimes of compilers, and makers' ways to their devices. Of
all other libraries of a host the names are told.
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
"""Beside the loader, which defines symbols too and is called otherwise on each machine."""

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
"""What more wheels need comes first: where a description grows too long, the symbols of the last
are left out. OpenGL has 3,500, of which hardly a wheel takes one."""
