# Takes the place of Envoy in a pod: it accepts connections that were redirected and goes on to where their clients wanted to go, as Envoy does
# without configuration for the address. To the pod itself it goes from 127.0.0.6 or ::6, as Envoy, and names the client in the first line
# of the answer, as Envoy does in the request (X-Forwarded-For).
import asyncio, ipaddress, socket, struct

OWN = {socket.AF_INET: "127.0.0.6", socket.AF_INET6: "::6"}


def wanted(sock):
    """The address before redirection, SO_ORIGINAL_DST."""
    if sock.family == socket.AF_INET:
        raw = sock.getsockopt(socket.SOL_IP, 80, 16)
        addr = raw[4:8]
    else:
        raw = sock.getsockopt(socket.IPPROTO_IPV6, 80, 28)
        addr = raw[8:24]
    return str(ipaddress.ip_address(addr)), struct.unpack("!H", raw[2:4])[0]


async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def carry(reader, writer, inbound):
    sock = writer.get_extra_info("socket")
    ends = [writer]
    try:
        source = (OWN[sock.family], 0) if inbound else None
        onward, back = await asyncio.open_connection(*wanted(sock), local_addr=source)
        ends.append(back)
        if inbound:
            line = await onward.readline()
            host, port = writer.get_extra_info("peername")[:2]
            client = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            writer.write(line.split(b" ")[0] + f" {client}\n".encode())
        await asyncio.gather(copy(reader, back), copy(onward, writer))
        for end in ends:
            end.close()
    except OSError:
        for end in ends:
            end.transport.abort()


async def main():
    for host in "0.0.0.0", "::":
        for port in 15001, 15006:
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if ":" in host:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port))
            await asyncio.start_server(lambda r, w, inbound=port == 15006: carry(r, w, inbound), sock=sock, backlog=1024)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
