"""Scripts of this project, by purpose; run one by ``python -m tools.FOLDER.NAME``."""
