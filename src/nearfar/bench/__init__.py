"""Speed compared with other libraries: `arms` is timed, `turns` times one arm, `measure` interleaves."""
