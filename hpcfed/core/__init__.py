"""What all rooms use: parameters and their means, named random streams, errors, payloads, names,
texts.
"""
