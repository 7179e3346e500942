"""Child processes: started, heard, started again when they end, ended together. None outlives this process.

``child``       one program through its lives, on an event loop
``supervisor``  several of them: started in order, ended in order, at once when told twice
``forked``      the process of a child that goes on from here without exec
"""
