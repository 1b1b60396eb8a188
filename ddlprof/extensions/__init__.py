"""What lies beside the line profile, attribute, recommend: each extension is a room that can be taken out.

A room holds all that is its own: its commands (`cli`), what they answer (`planning`) and show (`report`), what they run
in a training (`collect`), and its tests (`tests/extensions/ROOM`). `extension.py` in it says what it adds, and one line
of `ddlprof/registry.py` puts it in; `.github/workflows/nightly.yml` tries the suite without each. What a probe has
measured is read and shown by the core. A room imports of the rest of ddlprof what it needs; nothing outside it imports
it, other rooms included.
"""
