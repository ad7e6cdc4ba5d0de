"""Speed beside other libraries. `arms` defines what is timed, `turns` times one arm, `measure` interleaves
arms and prints."""
