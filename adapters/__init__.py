"""How specs act: one neutral core, and one thin adapter per engine that maps rows and history."""
