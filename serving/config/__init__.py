"""The configuration file of a service: `tidegate.yaml`, read, checked as a whole, shown and explained."""
