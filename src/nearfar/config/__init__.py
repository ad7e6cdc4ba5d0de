"""From words to parts: settings, recipes, presets, and how they are checked and built.

    choice       one of `views`, `encoders`, `critic`, `negatives`, `selection`, `bound`, `prior`
    setting      a key and its value: `epochs=50`, or of a part `negatives.size=8192`
    section      the settings of one choice: `{name: queue, size: 8192}`
    layer        settings from one origin: a recipe, a preset, a YAML file, `key=value` words
    recipe       a function that returns a `Method` of parts; its template is that method, without weights
    variant      a recipe under another selection: `moco-ring`
    preset       a paper's own settings for a recipe
    object       what a caller passes from Python in place of a name: a part, a module, a `Method`
    description  an object as it is written to config.yaml: class, attributes, shapes
    origin       the backbone and head that settings named, kept with the encoders that were built from them
    field        default and description of a setting that is not a part's (fields.py)
    Settings     all of it, complete and checked

`resolving` merges and checks, `building` makes the method once the data are known.
"""
