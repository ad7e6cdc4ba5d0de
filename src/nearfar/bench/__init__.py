"""Our speed beside that of other libraries: `arms` are what is done, `measure` takes turns and says what it found."""
