"""Manifest to bundle: plan, compile, audit, link; :mod:`~cutlass_aot.builder.build` composes them."""
