"""Results for others: an object for notebooks (`run`), tidy tables (`tables`), and files of them
(`export`).
"""
