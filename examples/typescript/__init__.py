"""Specs from TypeScript: a folder to copy or to publish; see its README."""
