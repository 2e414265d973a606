"""What engines and gateways tell: pushed or scraped, counted once, recorded in the lake."""
