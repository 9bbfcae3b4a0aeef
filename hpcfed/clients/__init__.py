"""What is simulated: a client, the store of all of them, their devices and network, who takes
part.
"""
