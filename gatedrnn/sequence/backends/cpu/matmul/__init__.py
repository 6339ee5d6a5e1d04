"""Products on packed panels, in every precision and storage form."""
