"""The machine and the operating system: files, untrusted input, hardware, signals, optional packages."""
