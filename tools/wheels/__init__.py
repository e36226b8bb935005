"""Makes Potluck's wheels: ``python -m tools.wheels.build``, or ``make wheels``.

On any Linux with Python: zig is compiler, linker and C library, Python's headers are those of
Debian. Only the standard library and what ``requirements.txt`` names is imported.
"""
