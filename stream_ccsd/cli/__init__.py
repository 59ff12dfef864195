"""What all commands share: how they are found, take options, show results and end."""
