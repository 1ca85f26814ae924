"""Programs: what they ask ``cute.compile`` for, recorded where there is no GPU and answered from a bundle."""
