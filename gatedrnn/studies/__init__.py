"""What the papers do with the models, one folder a study; a study imports no other study and no training."""
