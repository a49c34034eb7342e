"""The discrete element method as pure functions: contact laws, neighbours, boundaries and integrators."""
