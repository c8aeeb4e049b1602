"""A small GPT trained on the Python standard library's own sources: the main job on any machine, in about a minute."""
