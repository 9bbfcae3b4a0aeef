"""A run for whoever reads it: one class (`run`), and what it is made of: numbers by round
(`columns`), what came out (`summary`), how it stands (`state`), tables and files of them (`tables`,
`export`).
"""
