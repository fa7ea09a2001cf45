"""Ways to run SteerGuard: `deploy.local` is one machine, one command; the other folders hold files for clusters."""
