"""A real federation on Flower: the server's app, the clients' app, and what each keeps on its disk.

Flower is an optional dependency and slow to import, and so is torch: modules here import both where they use them.
"""
