"""What two bundles, reports of builds or plans differ in."""
