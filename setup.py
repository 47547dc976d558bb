"""What pyproject.toml cannot say: the wheel carries the folder hip/ as zyfa_triton/hip/source."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["zyfa_triton*", "asm_overrides*"]),
        "zyfa_triton.hip.source",
    ],
    package_dir={"zyfa_triton.hip.source": "hip"},
)
