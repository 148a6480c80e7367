"""The list of packages, which pyproject.toml cannot make: every room of `vse_demo`, and what a wheel carries."""

from setuptools import find_packages, setup

# Beside the package in a checkout. The notebooks with their outputs would make a wheel larger than 100 MB.
CARRIED = {"vse_demo.assets": "assets", "vse_demo.notebooks.student": "notebooks/student"}

setup(packages=[*find_packages(include=["vse_demo", "vse_demo.*"]), *CARRIED], package_dir=CARRIED)
